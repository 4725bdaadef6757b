from benchmarks.arena import main

if __name__ == "__main__":
    main()
