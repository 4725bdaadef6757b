"""The processes of a policy: Ray actors around upstream's classes, engines, and what starts,
watches and ends them."""
