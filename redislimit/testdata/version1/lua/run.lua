return decide(1, count)
