//! The architectures Briquette can run, with their data and metrics.
