"""The objects that a handler receives and uses: messages, batches, transactions, and the publisher."""
