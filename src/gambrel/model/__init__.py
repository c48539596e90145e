"""What a model is: parts, how they compose, and the readers that build them from a config.json."""
