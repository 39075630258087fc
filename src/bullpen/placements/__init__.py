"""Where instances run: local processes. What is run is a provisioner's business."""
