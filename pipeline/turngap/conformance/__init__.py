"""What a server does against its protocol, heard in one short conversation."""
