"""How accurate a model is: against annotated pictures, or against another model."""
