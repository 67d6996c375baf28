"""What an engine knows of itself: statistics, metrics, the canary that checks graphs, the watch over acceptance."""
