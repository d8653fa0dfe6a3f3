"""Export of trained policies as SavedModels."""
