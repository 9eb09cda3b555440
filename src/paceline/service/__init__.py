"""Many people, many machines: who runs what, where and when."""
