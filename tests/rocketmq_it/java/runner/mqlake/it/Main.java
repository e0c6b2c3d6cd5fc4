package mqlake.it;

import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the tests of one class. Each ends with a line on stdout: {@code @ passed|failed|skipped METHOD REASON}. */
public class Main {
    public static void main(String[] args) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            private String outcome;

            @Override
            public void testStarted(Description description) {
                outcome = "passed " + description.getMethodName();
            }

            @Override
            public void testFailure(Failure failure) {
                String method = failure.getDescription().getMethodName();
                failure.getException().printStackTrace();
                if (method == null) {
                    say("failed * " + oneLine(failure)); // before the first test of the class
                } else if (!outcome.startsWith("failed")) {
                    outcome = "failed " + method + " " + oneLine(failure); // what comes after it is of its teardown
                }
            }

            @Override
            public void testAssumptionFailure(Failure failure) {
                outcome = "skipped " + failure.getDescription().getMethodName() + " " + oneLine(failure);
            }

            @Override
            public void testIgnored(Description description) {
                say("ignored " + description.getMethodName());
            }

            @Override
            public void testFinished(Description description) {
                say(outcome);
            }
        });
        core.run(Class.forName(args[0]));
        System.exit(0); // clients leave threads behind
    }

    private static String oneLine(Failure failure) {
        return String.valueOf(failure.getException()).replaceAll("\\s+", " ");
    }

    private static void say(String outcome) {
        System.out.println("\n@ " + outcome);
        System.out.flush();
    }
}
