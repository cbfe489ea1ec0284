"""Two runs beside one another: what differs in how they were made, and is the second one worse? Reads files alone."""
