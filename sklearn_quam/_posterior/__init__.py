"""What models say about rows: accumulated, measured, and handed out chunk by chunk."""
