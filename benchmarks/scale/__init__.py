"""Every method and detector around networks of the sizes that people use."""
