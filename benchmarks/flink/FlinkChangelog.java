// The workload of ../changelog.py on Flink's own changelog, and Flink's reader for files of any writer.
// Reads one command per line and answers each with one line, until the input ends: both sides take turns.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.operators.MailboxExecutor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.changelog.fs.FsStateChangelogOptions;
import org.apache.flink.changelog.fs.FsStateChangelogStorage;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.LocalRecoveryConfig;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.changelog.ChangelogStateHandleStreamImpl;
import org.apache.flink.runtime.state.changelog.SequenceNumber;
import org.apache.flink.runtime.state.changelog.StateChange;
import org.apache.flink.runtime.state.changelog.StateChangelogStorage;
import org.apache.flink.runtime.state.changelog.StateChangelogWriter;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.function.ThrowingRunnable;

public final class FlinkChangelog {

    private static final int CHANGES_PER_PERSIST = 50_000;
    private static final KeyGroupRange KEY_GROUPS = KeyGroupRange.of(0, 127);

    private List<ChangelogStateHandleStreamImpl> written = new ArrayList<>();

    /** Callbacks run on the owner's thread while it waits, as on a task's thread in Flink. */
    private static final class Mailbox implements MailboxExecutor {
        private final LinkedBlockingQueue<ThrowingRunnable<? extends Exception>> mails =
                new LinkedBlockingQueue<>();

        @Override
        public void execute(
                MailOptions options,
                ThrowingRunnable<? extends Exception> command,
                String description,
                Object... arguments) {
            mails.add(command);
        }

        @Override
        public void yield() throws InterruptedException {
            run(mails.take());
        }

        @Override
        public boolean tryYield() {
            ThrowingRunnable<? extends Exception> mail = mails.poll();
            if (mail != null) {
                run(mail);
            }
            return mail != null;
        }

        @Override
        public boolean shouldInterrupt() {
            return false;
        }

        <T> T await(CompletableFuture<T> future) throws Exception {
            while (!future.isDone()) {
                // Without a mail of its own, a future that another thread completes would not end this wait.
                future.whenComplete((value, error) -> mails.add(() -> {}));
                this.yield();
            }
            return future.get();
        }

        private static void run(ThrowingRunnable<? extends Exception> mail) {
            try {
                mail.run();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static FsStateChangelogStorage storage(String directory, int delayMillis) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(FsStateChangelogOptions.BASE_PATH, "file://" + directory);
        configuration.set(FsStateChangelogOptions.PERSIST_DELAY, Duration.ofMillis(delayMillis));
        configuration.set(FsStateChangelogOptions.UPLOAD_TIMEOUT, Duration.ofSeconds(60));
        return new FsStateChangelogStorage(
                new JobID(),
                configuration,
                UnregisteredMetricGroups.createUnregisteredTaskManagerJobMetricGroup(),
                LocalRecoveryConfig.BACKUP_AND_RECOVERY_DISABLED);
    }

    private static byte[][] values(int count, int valueBytes) {
        Random random = new Random(7);
        byte[][] values = new byte[count][valueBytes];
        for (byte[] value : values) {
            for (int i = 0; i < valueBytes; i++) {
                value[i] = (byte) random.nextInt(64);
            }
        }
        return values;
    }

    private static int[] keyGroups(int count) {
        return new Random(8).ints(count, 0, 128).toArray();
    }

    /** Seconds to append the changes, in persists of 50,000 that are waited for. */
    private double write(String directory, int valueBytes, int delayMillis, int changes) throws Exception {
        byte[][] values = values(CHANGES_PER_PERSIST, valueBytes);
        int[] keyGroups = keyGroups(CHANGES_PER_PERSIST);
        List<ChangelogStateHandleStreamImpl> handles = new ArrayList<>();
        System.gc();
        long began = System.nanoTime();
        Mailbox mailbox = new Mailbox();
        try (StateChangelogStorage<ChangelogStateHandleStreamImpl> storage = storage(directory, delayMillis);
                StateChangelogWriter<ChangelogStateHandleStreamImpl> writer =
                        storage.createWriter("op", KEY_GROUPS, mailbox)) {
            for (int persist = 0; persist < changes / CHANGES_PER_PERSIST; persist++) {
                SequenceNumber from = writer.nextSequenceNumber();
                for (int i = 0; i < CHANGES_PER_PERSIST; i++) {
                    writer.append(keyGroups[i], values[i]);
                }
                SnapshotResult<ChangelogStateHandleStreamImpl> result = mailbox.await(writer.persist(from, 1));
                handles.add(result.getJobManagerOwnedSnapshot());
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        written = handles;
        return seconds;
    }

    /** Seconds to read back what `write` wrote last; every change is an array of its own. */
    private double restore(String directory) throws Exception {
        System.gc();
        long began = System.nanoTime();
        long count = 0;
        long payloadBytes = 0;
        try (FsStateChangelogStorage storage = storage(directory, 10)) {
            for (ChangelogStateHandleStreamImpl handle : written) {
                try (CloseableIterator<StateChange> read = storage.createReader().getChanges(handle)) {
                    while (read.hasNext()) {
                        payloadBytes += read.next().getChange().length;
                        count++;
                    }
                }
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        if (count != (long) written.size() * CHANGES_PER_PERSIST || payloadBytes == 0) {
            throw new IllegalStateException(count + " changes were read");
        }
        return seconds;
    }

    /** Median seconds of a persist of 1,000 changes of 100 bytes, appended before. */
    private static double persist(String directory, int delayMillis, int repetitions) throws Exception {
        byte[][] values = values(1_000, 100);
        int[] keyGroups = keyGroups(1_000);
        double[] seconds = new double[repetitions];
        Mailbox mailbox = new Mailbox();
        System.gc();
        try (StateChangelogStorage<ChangelogStateHandleStreamImpl> storage = storage(directory, delayMillis);
                StateChangelogWriter<ChangelogStateHandleStreamImpl> writer =
                        storage.createWriter("op", KEY_GROUPS, mailbox)) {
            for (int repetition = 0; repetition < repetitions; repetition++) {
                SequenceNumber from = writer.nextSequenceNumber();
                for (int i = 0; i < values.length; i++) {
                    writer.append(keyGroups[i], values[i]);
                }
                long began = System.nanoTime();
                mailbox.await(writer.persist(from, 1));
                seconds[repetition] = (System.nanoTime() - began) / 1e9;
            }
        }
        Arrays.sort(seconds);
        return seconds[repetitions / 2];
    }

    /** The changes of a file at these offsets, each as key group, `:` and hexadecimal digits. */
    private static String read(String file, String[] offsets) throws Exception {
        Path path = new Path("file://" + file);
        StreamStateHandle handle = new FileStateHandle(path, path.getFileSystem().getFileStatus(path).getLen());
        List<Tuple2<StreamStateHandle, Long>> places = new ArrayList<>();
        for (String offset : offsets) {
            places.add(Tuple2.of(handle, Long.valueOf(offset)));
        }
        StringBuilder text = new StringBuilder();
        try (FsStateChangelogStorage storage = storage(path.getParent().getPath(), 10);
                CloseableIterator<StateChange> read =
                        storage.createReader()
                                .getChanges(
                                        new ChangelogStateHandleStreamImpl(
                                                places, KEY_GROUPS, 0, 0, "filesystem"))) {
            while (read.hasNext()) {
                StateChange change = read.next();
                text.append(' ').append(change.getKeyGroup()).append(':');
                text.append(HexFormat.of().formatHex(change.getChange()));
            }
        }
        return text.toString();
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "write":
                return String.valueOf(
                        write(
                                words[1],
                                Integer.parseInt(words[2]),
                                Integer.parseInt(words[3]),
                                Integer.parseInt(words[4])));
            case "restore":
                return String.valueOf(restore(words[1]));
            case "persist":
                return String.valueOf(persist(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3])));
            case "read":
                return read(words[1], Arrays.copyOfRange(words, 2, words.length));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        FlinkChangelog changelog = new FlinkChangelog();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            System.out.println("answer " + changelog.answer(line.split("\t")));
        }
    }
}
