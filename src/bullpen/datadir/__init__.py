"""The data directory of the embedded home: its layout, its lock, and the files people use."""
