"""What goes over the wire: the bodies of requests and answers, and what they mean to the store."""
