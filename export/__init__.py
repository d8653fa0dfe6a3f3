"""Export of trained policies as SavedModels: to come."""
