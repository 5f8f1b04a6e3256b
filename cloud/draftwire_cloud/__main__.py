"""``python -m draftwire_cloud``: the operator's command, for launchers that want a module."""

from draftwire_cloud.cli import main

if __name__ == "__main__":
    main()
