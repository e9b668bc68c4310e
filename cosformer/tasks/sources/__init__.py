"""Where text comes from: the user's own files, a hub, and the data sets the paper uses."""
