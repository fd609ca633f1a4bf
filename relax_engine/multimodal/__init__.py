"""Images, videos and audio of the models that read them: what engine and trainer must agree on."""
