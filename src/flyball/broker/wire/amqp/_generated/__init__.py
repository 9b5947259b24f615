"""Made by scripts/generate-amqp-methods: not to be changed by hand."""
