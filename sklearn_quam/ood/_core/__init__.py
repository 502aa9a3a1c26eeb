"""What all detectors are made of: reading a network, thresholds, moments of features."""
