"""Everything that can be measured: one folder per kind, one file per benchmark."""
