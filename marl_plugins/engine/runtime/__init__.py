"""The training loop: session, rollout, credit, forward passes, advantages, updates, checkpoints."""
