"""The AsyncAPI description of an app: its streams as channels, its handlers as operations. See `App.asyncapi`."""
