"""What the micro benchmarks share: their parameters, how a call is timed, programs and native code they use."""
