// Predicts the classes of images with a bundle, and verifies the bundle:
//
//     java Predict BUNDLE photo.jpg ...
//     java Predict BUNDLE verify

import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.awt.image.BufferedImage;
import java.awt.image.IndexColorModel;
import java.awt.image.Raster;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.IntStream;
import javax.imageio.ImageIO;
import javax.imageio.ImageReader;
import javax.imageio.stream.ImageInputStream;

public final class Predict {
    private static final List<String> STAGES = List.of("decoding", "resizing", "network", "post-processing");

    private static final long PNG = 0x89504E470D0A1A0AL; // the first bytes of a file

    /** RGB pixels [height, width, 3]. */
    record Pixels(int height, int width, byte[] values) {}

    /** Stage of a golden sample that differs. */
    record Failure(String image, String stage, String text) {}

    private final OrtEnvironment environment = OrtEnvironment.getEnvironment();
    private final Path folder;
    private final JsonObject json;
    private final JsonObject model;
    private final OrtSession session;

    Predict(Path folder) throws IOException, OrtException {
        this.folder = folder;
        json = JsonParser.parseString(Files.readString(folder.resolve("bundle.json"))).getAsJsonObject();
        model = json.getAsJsonObject("model");
        session = environment.createSession(path(model.get("file").getAsString()).toString());
    }

    public static void main(String[] words) {
        if (words.length < 2) {
            System.err.println("usage: java Predict BUNDLE verify | java Predict BUNDLE IMAGE ...");
            System.exit(2);
        }
        try {
            Predict predict = new Predict(Path.of(words[0]));
            if (words.length == 2 && words[1].equals("verify")) {
                System.exit(predict.verify() ? 0 : 3);
            }
            System.exit(predict.predictFiles(words));
        } catch (IOException | OrtException | RuntimeException error) {
            System.err.println("error: " + error);
            System.exit(1);
        }
    }

    /** Prints the answers for the files after the first word, and returns the exit code. */
    private int predictFiles(String[] words) throws OrtException {
        int code = 0;
        for (int i = 1; i < words.length; i++) {
            String answer;
            try {
                answer = predict(decode(Files.readAllBytes(Path.of(words[i]))));
            } catch (NoSuchFileException error) {
                answer = "error: no such file";
                code = 1;
            } catch (IOException error) {
                answer = "error: " + error.getMessage();
                code = 1;
            }
            System.out.println(words[i] + ": " + answer);
        }
        return code;
    }

    private Path path(String name) throws IOException {
        if (!name.matches("\\w[\\w.-]*(/\\w[\\w.-]*)*")) {
            throw new IOException("bundle.json: expected a path in the bundle, got " + name);
        }
        return folder.resolve(name);
    }

    /** Returns the upright pixels of a JPEG or PNG file. Alpha is ignored. */
    static Pixels decode(byte[] data) throws IOException {
        boolean jpeg = data.length > 2 && (data[0] & 0xFF) == 0xFF && (data[1] & 0xFF) == 0xD8;
        if (!jpeg && (data.length < 12 || ByteBuffer.wrap(data).getLong(0) != PNG)) {
            throw new IOException("expected a JPEG or PNG file");
        }
        ImageReader reader = ImageIO.getImageReadersByFormatName(jpeg ? "jpeg" : "png").next();
        List<String> warnings = new ArrayList<>(); // the only sign of a JPEG file whose end is missing
        reader.addIIOReadWarningListener((source, warning) -> warnings.add(warning));
        BufferedImage image;
        try (ImageInputStream stream = ImageIO.createImageInputStream(new ByteArrayInputStream(data))) {
            reader.setInput(stream, true, true);
            image = reader.read(0);
        } catch (RuntimeException error) { // the readers throw these for some damaged files
            throw new IOException("the file is damaged: " + error, error);
        } finally {
            reader.dispose();
        }
        if (!warnings.isEmpty()) {
            throw new IOException("the file is damaged: " + warnings.get(0));
        }
        if (jpeg && image.getRaster().getNumBands() == 4) {
            throw new IOException("CMYK is not supported; convert the image to RGB");
        }
        int height = image.getHeight();
        int width = image.getWidth();
        Raster raster = image.getRaster();
        int bands = raster.getNumBands();
        boolean deep = raster.getSampleModel().getSampleSize(0) == 16;
        byte[] stored = new byte[3 * height * width];
        for (int y = 0, at = 0; y < height; y++) {
            for (int x = 0; x < width; x++, at += 3) {
                if (image.getColorModel() instanceof IndexColorModel) { // palettes, and grey of fewer than 8 bits
                    int rgb = image.getRGB(x, y);
                    stored[at] = (byte) (rgb >> 16);
                    stored[at + 1] = (byte) (rgb >> 8);
                    stored[at + 2] = (byte) rgb;
                    continue;
                }
                for (int channel = 0; channel < 3; channel++) { // getRGB would apply a colour profile
                    int sample = raster.getSample(x, y, bands >= 3 ? channel : 0);
                    stored[at + channel] = (byte) (deep ? (sample + 128) / 257 : sample);
                }
            }
        }
        return turnUpright(new Pixels(height, width, stored), findOrientation(data));
    }

    /** Returns the EXIF orientation 1 to 8 of a JPEG or PNG file; 1 if there is none. */
    static int findOrientation(byte[] data) {
        ByteBuffer file = ByteBuffer.wrap(data);
        if (data.length < 12) {
            return 1;
        }
        if (file.getLong(0) == PNG) {
            for (long at = 8; at + 12 <= data.length; at += 12 + (file.getInt((int) at) & 0xFFFFFFFFL)) {
                if (file.getInt((int) at + 4) == 0x65584966) { // eXIf
                    return orientationOf(slice(data, (int) at + 8, file.getInt((int) at)));
                }
            }
            return 1;
        }
        for (int at = 2; at + 18 < data.length && data[at] == (byte) 0xFF; ) {
            int marker = data[at + 1] & 0xFF;
            int length = file.getShort(at + 2) & 0xFFFF;
            if (marker == 0xE1 && file.getInt(at + 4) == 0x45786966) { // Exif
                return orientationOf(slice(data, at + 10, length - 8));
            }
            if (marker == 0xDA) { // the pixels begin
                return 1;
            }
            at += marker == 0xFF ? 1 : 2 + length; // any number of bytes 0xFF can precede a marker
        }
        return 1;
    }

    private static ByteBuffer slice(byte[] data, int begin, int length) {
        return ByteBuffer.wrap(data, begin, Math.max(0, Math.min(length, data.length - begin))).slice();
    }

    private static int orientationOf(ByteBuffer tiff) {
        if (tiff.limit() < 10) {
            return 1;
        }
        tiff.order(tiff.get(0) == 'I' ? ByteOrder.LITTLE_ENDIAN : ByteOrder.BIG_ENDIAN);
        int directory = tiff.getInt(4);
        if (directory < 8 || directory > tiff.limit() - 2) {
            return 1;
        }
        int count = tiff.getShort(directory) & 0xFFFF;
        for (int i = 0; i < count && directory + 14 + 12 * i <= tiff.limit(); i++) {
            int entry = directory + 2 + 12 * i;
            if (tiff.getShort(entry) == 0x0112) {
                int value = tiff.getShort(entry + 8);
                return value >= 1 && value <= 8 ? value : 1;
            }
        }
        return 1;
    }

    private static Pixels turnUpright(Pixels image, int orientation) {
        if (orientation == 1) {
            return image;
        }
        boolean swap = orientation >= 5;
        int height = swap ? image.width : image.height;
        int width = swap ? image.height : image.width;
        boolean flipRows = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
        boolean flipColumns = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
        byte[] values = new byte[image.values.length];
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++) {
                int row = flipRows ? height - 1 - y : y;
                int column = flipColumns ? width - 1 - x : x;
                int from = swap ? column * image.width + row : row * image.width + column;
                System.arraycopy(image.values, 3 * from, values, 3 * (y * width + x), 3);
            }
        }
        return new Pixels(height, width, values);
    }

    /** Returns the outputs of the model for one image: prepared, logits, probabilities and known_score. */
    private Map<String, float[]> run(Pixels image) throws OrtException {
        long[] shape = {1, image.height, image.width, 3};
        ByteBuffer buffer = ByteBuffer.allocateDirect(image.values.length).order(ByteOrder.nativeOrder());
        buffer.put(image.values).rewind();
        Map<String, float[]> outputs = new HashMap<>();
        try (OnnxTensor input = OnnxTensor.createTensor(environment, buffer, shape, OnnxJavaType.UINT8);
                OrtSession.Result result = session.run(Map.of(model.get("input").getAsString(), input))) {
            for (String stage : List.of("prepared", "logits", "probabilities", "known_score")) {
                if (model.has(stage) && !model.get(stage).isJsonNull()) {
                    OnnxTensor output = (OnnxTensor) result.get(model.get(stage).getAsString()).orElseThrow();
                    FloatBuffer values = output.getFloatBuffer();
                    float[] copy = new float[values.remaining()];
                    values.get(copy);
                    outputs.put(stage, copy);
                }
            }
        }
        return outputs;
    }

    /** Returns the numbers of the selected classes, in descending order of their scores. */
    List<Integer> select(float[] scores) {
        JsonObject decision = json.getAsJsonObject("decision");
        String method = decision.get("method").getAsString();
        List<Integer> order = new ArrayList<>(IntStream.range(0, scores.length).boxed().toList());
        order.sort(Comparator.comparing((Integer k) -> -scores[k]));
        if (method.equals("topk")) {
            return order.subList(0, Math.min(scores.length, decision.get("topk").getAsInt()));
        }
        JsonElement limit = decision.get("threshold");
        if (method.equals("binary")) {
            return List.of(scores[1] >= limitOf(limit, 1) ? 1 : 0);
        }
        return order.stream().filter(k -> scores[k] >= limitOf(limit, k)).toList();
    }

    /** Returns whether two selections are equal, or differ only by expected scores that are nearly tied. */
    private boolean isSameSelection(List<Integer> selected, List<Integer> expected, double[] scores, double allowed) {
        JsonObject decision = json.getAsJsonObject("decision");
        String method = decision.get("method").getAsString();
        if (method.equals("topk")) {
            return selected.size() == expected.size()
                    && IntStream.range(0, expected.size()).allMatch(
                            i -> Math.abs(scores[selected.get(i)] - scores[expected.get(i)]) <= 2 * allowed);
        }
        List<Integer> changed = new ArrayList<>(selected);
        changed.removeAll(expected);
        expected.stream().filter(k -> !selected.contains(k)).forEach(changed::add);
        List<Integer> decisive = method.equals("binary") && !changed.isEmpty() ? List.of(1) : changed;
        JsonElement limit = decision.get("threshold");
        return decisive.stream().allMatch(k -> Math.abs(scores[k] - limitOf(limit, k)) <= 2 * allowed);
    }

    private static double limitOf(JsonElement limit, int k) {
        return limit instanceof JsonArray list ? list.get(k).getAsDouble() : limit.getAsDouble();
    }

    String predict(Pixels image) throws OrtException {
        Map<String, float[]> outputs = run(image);
        float[] scores = outputs.get("probabilities");
        if (json.get("rejection") instanceof JsonObject rule) {
            double score = knownScore(outputs);
            if (score < limitOf(rule.get("threshold"), bestOf(scores))) {
                return String.format(Locale.ROOT, "unknown, score %.4f", score);
            }
        }
        List<String> parts = new ArrayList<>();
        for (int k : select(scores)) {
            String name = json.getAsJsonArray("classes").get(k).getAsString();
            parts.add(String.format(Locale.ROOT, "%s %.2f%%", name, 100 * scores[k]));
        }
        return String.join(", ", parts);
    }

    private static int bestOf(float[] scores) {
        return IntStream.range(0, scores.length).reduce(0, (a, b) -> scores[b] > scores[a] ? b : a);
    }

    /** Returns the score for the answer unknown: an output of the model, or the best probability. */
    private static double knownScore(Map<String, float[]> outputs) {
        float[] scores = outputs.get("probabilities");
        return outputs.containsKey("known_score") ? outputs.get("known_score")[0] : scores[bestOf(scores)];
    }

    /** Runs the golden samples, prints the result, and returns whether all outputs are as expected. */
    boolean verify() throws IOException, OrtException {
        JsonArray samples = json.getAsJsonArray("golden");
        List<Failure> failures = new ArrayList<>();
        double[] largest = {0};
        for (JsonElement element : samples) {
            Failure failure = verifySample(element.getAsJsonObject(), largest);
            if (failure != null) {
                failures.add(failure);
            }
        }
        int total = samples.size();
        if (failures.isEmpty()) {
            System.out.printf(Locale.ROOT, "PASS: %d of %d, largest difference %.1e%n", total, total, largest[0]);
            return true;
        }
        Failure first = Collections.min(failures, Comparator.comparing(failure -> STAGES.indexOf(failure.stage)));
        System.out.printf("FAIL: %d of %d; first stage that differs: %s%n%s: %s: %s%n", total - failures.size(), total,
                first.stage, first.image, first.stage, first.text);
        return false;
    }

    /** Returns the first stage that differs, with numbers; null if there is none. */
    private Failure verifySample(JsonObject sample, double[] largest) throws IOException, OrtException {
        JsonObject limits = json.getAsJsonObject("tolerances");
        String image = sample.get("image").getAsString();
        Pixels decoded = decode(Files.readAllBytes(path(image)));
        int height = sample.get("height").getAsInt();
        int width = sample.get("width").getAsInt();
        Pixels expected = new Pixels(height, width, Files.readAllBytes(path(sample.get("decoded").getAsString())));
        double[] probabilities = readFloats(sample.get("probabilities"));
        Map<String, float[]> outputs = run(expected);
        boolean equal = decoded.height == height && Arrays.equals(decoded.values, expected.values);
        double[] whole = toDoubles((equal ? outputs : run(decoded)).get("probabilities"));
        for (int k = 0; k < whole.length; k++) {
            largest[0] = Math.max(largest[0], Math.abs(whole[k] - probabilities[k]));
        }
        if (decoded.height != height || decoded.width != width) {
            return new Failure(image, "decoding", "another size: check the EXIF orientation");
        }
        JsonElement levels = image.endsWith(".jpg") ? limits.get("decoding") : new JsonPrimitive(0);
        String text = compare(toDoubles(decoded.values), toDoubles(expected.values), levels);
        if (text != null) {
            return new Failure(image, "decoding", text);
        }
        for (String[] stage : new String[][] {
            {"resizing", "prepared"}, {"network", "logits"}, {"post-processing", "probabilities"}}) {
            if (!sample.get(stage[1]).isJsonNull()) {
                JsonElement limit = limits.get(stage[0].equals("resizing") ? "resizing" : stage[1]);
                text = compare(toDoubles(outputs.get(stage[1])), readFloats(sample.get(stage[1])), limit);
                if (text != null) {
                    return new Failure(image, stage[0], text);
                }
            }
        }
        text = compareAnswer(sample, outputs, probabilities);
        return text == null ? null : new Failure(image, "post-processing", text);
    }

    /** Returns the difference between the answer and the expected one; null if they are equal, or nearly tied. */
    private String compareAnswer(JsonObject sample, Map<String, float[]> outputs, double[] wanted) {
        float[] scores = outputs.get("probabilities");
        JsonObject limits = json.getAsJsonObject("tolerances");
        double allowed = limits.get("probabilities").getAsDouble();
        List<Integer> selected = select(scores);
        List<Integer> classes = new ArrayList<>();
        sample.getAsJsonArray("classes").forEach(number -> classes.add(number.getAsInt()));
        if (!isSameSelection(selected, classes, wanted, allowed)) {
            return "expected the classes " + classes + ", got " + selected;
        }
        if (!(json.get("rejection") instanceof JsonObject rule)) {
            return null;
        }
        double score = knownScore(outputs);
        double known = sample.get("known_score").getAsDouble();
        double most = limits.get(outputs.containsKey("known_score") ? "known_score" : "probabilities").getAsDouble();
        double limit = limitOf(rule.get("threshold"), bestOf(scores));
        boolean other = (score < limit) != sample.get("unknown").getAsBoolean() && Math.abs(known - limit) > 2 * most;
        if (Math.abs(score - known) <= most && !other) {
            return null;
        }
        return String.format(Locale.ROOT, "expected the score %.4g for unknown, got %.4g", known, score);
    }

    private double[] readFloats(JsonElement name) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(path(name.getAsString()))).order(ByteOrder.LITTLE_ENDIAN);
        double[] values = new double[bytes.remaining() / 4];
        for (int i = 0; i < values.length; i++) {
            values[i] = bytes.getFloat();
        }
        return values;
    }

    private static double[] toDoubles(float[] values) {
        return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
    }

    private static double[] toDoubles(byte[] pixels) {
        return IntStream.range(0, pixels.length).mapToDouble(i -> pixels[i] & 0xFF).toArray();
    }

    /** Returns the difference of two arrays as text if it is not allowed, else null; allowed: a number or a pair. */
    private static String compare(double[] actual, double[] expected, JsonElement allowed) {
        if (actual.length != expected.length) {
            return String.format(Locale.ROOT, "expected %d values, got %d", expected.length, actual.length);
        }
        double most = allowed instanceof JsonArray pair ? pair.get(0).getAsDouble() : allowed.getAsDouble();
        double meanAllowed = allowed instanceof JsonArray pair ? pair.get(1).getAsDouble() : most;
        double largest = 0;
        double sum = 0;
        for (int i = 0; i < actual.length; i++) {
            double apart = Math.abs(actual[i] - expected[i]);
            largest = apart <= largest ? largest : apart; // also NaN
            sum += apart;
        }
        double mean = sum / Math.max(1, actual.length);
        if (largest <= most && mean <= meanAllowed) {
            return null;
        }
        return String.format(Locale.ROOT, "largest difference %.2g (allowed %.2g), mean %.2g (allowed %.2g)", largest,
                most, mean, meanAllowed);
    }
}
