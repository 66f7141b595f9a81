"""Files of models, opened once and looked at before a runtime reads them."""
