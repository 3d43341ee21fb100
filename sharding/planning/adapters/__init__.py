"""Plan the merge of an adapter into the model that it was trained on."""
