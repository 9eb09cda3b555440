"""The torch side of the zoo; the registry does not look in here, so that listing models imports no torch."""
