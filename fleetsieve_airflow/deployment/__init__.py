"""What a plan is used for: commands, manifests, values and JSON to deploy it, and what changes. Pure."""
