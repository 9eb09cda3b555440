"""Suite to isolated processes to records."""
