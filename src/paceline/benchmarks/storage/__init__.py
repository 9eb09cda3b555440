"""What disks can do."""
