"""The run itself: Ray processes around upstream's classes, the training loop, checkpoints and records."""
