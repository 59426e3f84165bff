"""The objects that we read, as slim frozen values, one module per API group; how they are decoded; the events that
sources emit. Must not know where objects come from or what is made of them."""
