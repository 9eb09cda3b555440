"""Training scripts of Megatron-LM and Megatron-DeepSpeed, run as they are."""
