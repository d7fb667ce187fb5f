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
import java.awt.image.BufferedImage;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.IntStream;
import javax.imageio.ImageIO;

public final class Predict {
    /** RGB pixels [height, width, 3]. */
    record Pixels(int height, int width, byte[] values) {}

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

    public static void main(String[] words) throws IOException, OrtException {
        if (words.length < 2) {
            System.err.println("usage: java Predict BUNDLE verify | java Predict BUNDLE IMAGE ...");
            System.exit(2);
        }
        Predict predict = new Predict(Path.of(words[0]));
        if (words.length == 2 && words[1].equals("verify")) {
            System.exit(predict.verify() ? 0 : 3);
        }
        for (int i = 1; i < words.length; i++) {
            System.out.println(words[i] + ": " + predict.predict(decode(Files.readAllBytes(Path.of(words[i])))));
        }
    }

    private Path path(String name) throws IOException {
        if (!name.matches("\\w[\\w.-]*(/\\w[\\w.-]*)*")) {
            throw new IOException("bundle.json: expected a path in the bundle, got " + name);
        }
        return folder.resolve(name);
    }

    /** Returns the upright pixels of a JPEG or PNG file. Alpha is ignored. */
    static Pixels decode(byte[] data) throws IOException {
        BufferedImage image = ImageIO.read(new ByteArrayInputStream(data));
        if (image == null) {
            throw new IOException("expected a JPEG or PNG file");
        }
        int height = image.getHeight();
        int width = image.getWidth();
        byte[] stored = new byte[3 * height * width];
        boolean grey = image.getRaster().getNumBands() <= 2 && image.getColorModel().getPixelSize() >= 8
                && !(image.getColorModel() instanceof java.awt.image.IndexColorModel);
        int bits = image.getSampleModel().getSampleSize(0);
        for (int y = 0, at = 0; y < height; y++) {
            for (int x = 0; x < width; x++, at += 3) {
                if (grey) { // getRGB would apply a colour space
                    int sample = image.getRaster().getSample(x, y, 0);
                    byte value = (byte) (bits == 16 ? (sample + 128) / 257 : sample);
                    stored[at] = stored[at + 1] = stored[at + 2] = value;
                } else {
                    int rgb = image.getRGB(x, y);
                    stored[at] = (byte) (rgb >> 16);
                    stored[at + 1] = (byte) (rgb >> 8);
                    stored[at + 2] = (byte) rgb;
                }
            }
        }
        return turnUpright(new Pixels(height, width, stored), findOrientation(data));
    }

    /** Returns the EXIF orientation 1 to 8 of a JPEG file; 1 if there is none. */
    static int findOrientation(byte[] data) {
        ByteBuffer file = ByteBuffer.wrap(data);
        if (data.length < 4 || file.getShort(0) != (short) 0xFFD8) {
            return 1;
        }
        for (int at = 2; at + 4 < data.length && data[at] == (byte) 0xFF; ) {
            int length = file.getShort(at + 2) & 0xFFFF;
            boolean exif = (data[at + 1] & 0xFF) == 0xE1 && at + 18 < data.length && file.getInt(at + 4) == 0x45786966;
            if (exif) {
                return orientationOf(ByteBuffer.wrap(data, at + 10, Math.min(length - 8, data.length - at - 10)).slice());
            }
            if ((data[at + 1] & 0xFF) == 0xDA) {
                return 1;
            }
            at += 2 + length;
        }
        return 1;
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

    /** Returns an output of the model for one image: prepared, logits, probabilities or known_score. */
    private float[] run(Pixels image, String stage) throws OrtException {
        long[] shape = {1, image.height, image.width, 3};
        ByteBuffer buffer = ByteBuffer.allocateDirect(image.values.length).order(ByteOrder.nativeOrder());
        buffer.put(image.values).rewind();
        try (OnnxTensor input = OnnxTensor.createTensor(environment, buffer, shape, OnnxJavaType.UINT8);
                OrtSession.Result result = session.run(Map.of(model.get("input").getAsString(), input))) {
            OnnxTensor output = (OnnxTensor) result.get(model.get(stage).getAsString()).orElseThrow();
            float[] values = new float[output.getFloatBuffer().remaining()];
            output.getFloatBuffer().get(values);
            return values;
        }
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

    private static double limitOf(JsonElement limit, int k) {
        return limit instanceof JsonArray list ? list.get(k).getAsDouble() : limit.getAsDouble();
    }

    String predict(Pixels image) throws OrtException {
        float[] scores = run(image, "probabilities");
        if (json.get("rejection") instanceof JsonObject rule) {
            double score = knownScore(image, scores);
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
    private double knownScore(Pixels image, float[] scores) throws OrtException {
        boolean returned = model.has("known_score") && !model.get("known_score").isJsonNull();
        return returned ? run(image, "known_score")[0] : scores[bestOf(scores)];
    }

    /** Runs the golden samples, prints the result, and returns whether all outputs are as expected. */
    boolean verify() throws IOException, OrtException {
        JsonArray samples = json.getAsJsonArray("golden");
        String first = null;
        int failed = 0;
        double[] largest = {0};
        for (JsonElement element : samples) {
            String failure = verifySample(element.getAsJsonObject(), largest);
            failed += failure == null ? 0 : 1;
            first = first == null ? failure : first;
        }
        int total = samples.size();
        if (failed == 0) {
            System.out.printf(Locale.ROOT, "PASS: %d of %d, largest difference %.1e%n", total, total, largest[0]);
        } else {
            System.out.printf(Locale.ROOT, "FAIL: %d of %d%n%s%n", total - failed, total, first);
        }
        return failed == 0;
    }

    /** Returns the first stage that differs, with numbers; null if there is none. */
    private String verifySample(JsonObject sample, double[] largest) throws IOException, OrtException {
        JsonObject limits = json.getAsJsonObject("tolerances");
        String name = sample.get("image").getAsString();
        Pixels decoded = decode(Files.readAllBytes(path(name)));
        int height = sample.get("height").getAsInt();
        int width = sample.get("width").getAsInt();
        if (decoded.height != height || decoded.width != width) {
            return name + ": decoding: another size: check the EXIF orientation";
        }
        Pixels expected = new Pixels(height, width, Files.readAllBytes(path(sample.get("decoded").getAsString())));
        double[] pixels = new double[decoded.values.length];
        double[] expectedPixels = new double[pixels.length];
        for (int i = 0; i < pixels.length; i++) {
            pixels[i] = decoded.values[i] & 0xFF;
            expectedPixels[i] = expected.values[i] & 0xFF;
        }
        JsonArray levels = limits.getAsJsonArray("decoding");
        boolean lossy = name.endsWith(".jpg");
        String failure = compare("decoding", pixels, expectedPixels, lossy ? levels.get(0).getAsDouble() : 0,
                lossy ? levels.get(1).getAsDouble() : 0);
        for (String[] stage : new String[][] {
            {"resizing", "prepared"}, {"network", "logits"}, {"post-processing", "probabilities"}}) {
            if (failure != null || sample.get(stage[1]).isJsonNull()) {
                continue;
            }
            JsonElement limit = limits.get(stage[0].equals("resizing") ? "resizing" : stage[1]);
            double most = limitOf(limit, 0);
            double mean = limit instanceof JsonArray pair ? pair.get(1).getAsDouble() : most;
            failure = compare(stage[0], toDoubles(run(expected, stage[1])), readFloats(sample.get(stage[1])), most, mean);
        }
        double[] whole = toDoubles(run(decoded, "probabilities"));
        double[] probabilities = readFloats(sample.get("probabilities"));
        for (int k = 0; k < whole.length; k++) {
            largest[0] = Math.max(largest[0], Math.abs(whole[k] - probabilities[k]));
        }
        if (failure == null && json.get("rejection") instanceof JsonObject rule) {
            float[] scores = run(expected, "probabilities");
            double score = knownScore(expected, scores);
            double wanted = sample.get("known_score").getAsDouble();
            boolean returned = model.has("known_score") && !model.get("known_score").isJsonNull();
            double most = limits.get(returned ? "known_score" : "probabilities").getAsDouble();
            double limit = limitOf(rule.get("threshold"), bestOf(scores));
            boolean other = (score < limit) != sample.get("unknown").getAsBoolean() && Math.abs(wanted - limit) > 2 * most;
            if (!(Math.abs(score - wanted) <= most) || other) {
                failure = String.format(Locale.ROOT, "post-processing: expected the score %.4g for unknown, got %.4g",
                        wanted, score);
            }
        }
        return failure == null ? null : name + ": " + failure;
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

    private static String compare(String stage, double[] actual, double[] expected, double most, double meanAllowed) {
        if (actual.length != expected.length) {
            return String.format("%s: expected %d values, got %d", stage, expected.length, actual.length);
        }
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
        return String.format(Locale.ROOT, "%s: largest difference %.2g (allowed %.2g), mean %.2g (allowed %.2g)", stage,
                largest, most, mean, meanAllowed);
    }
}
