"""``ec2.jumpstarter.dev``: instances of Amazon EC2 as targets, with their exporters beside us."""
