"""Agent sessions: programs that talk to the policy over chat endpoints, and what they did as samples to train on."""
