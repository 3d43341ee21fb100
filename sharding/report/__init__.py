"""Report what a job did, as JSON and as a model card."""
