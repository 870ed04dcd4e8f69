"""What runs on the GPU: functions in Triton's language. The modules beside this package launch them."""
