"""`turngap init`: looks for the bot, tries to reach it, and writes what a repository needs."""
