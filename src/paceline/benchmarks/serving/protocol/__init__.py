"""What travels: the open inference protocol as bytes, for servers and for those who ask them."""
