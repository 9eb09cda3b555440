"""What training and inference share: parameters, precision, building, batch size, metrics."""
