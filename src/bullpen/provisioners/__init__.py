"""What to run for a virtual target. Where it runs is a placement's business."""
