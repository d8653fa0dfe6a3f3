"""Export of trained policies as SavedModels that TF Serving loads."""
