"""Where instances run: local processes or Pods. A provisioner decides what to run."""
