package mqlake.peer;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * RocketMQ's message store behind a line protocol: one JSON request a line on stdin; per request any number of
 * JSON lines on stdout, the last of which carries "end" (or "error"). See {@link Server} for the requests.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        // Whatever a library prints must not get between the answers.
        System.setOut(System.err);
        try (BufferedReader requests =
                 new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16)) {
            new Server(requests, answers).run();
        }
        answers.flush();
        // The store leaves threads behind that are not daemons.
        Runtime.getRuntime().halt(0);
    }
}
