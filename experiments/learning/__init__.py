"""Learning of the policy for a whole compilation: data, models, validation, and the folder that ships."""
